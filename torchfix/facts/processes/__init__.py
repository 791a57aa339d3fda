"""A process per GPU: replication, and what its processes must agree on."""

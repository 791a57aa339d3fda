"""Loading data: loaders, datasets, batches and worker processes."""

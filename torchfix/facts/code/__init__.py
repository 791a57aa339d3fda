"""What Python code means: names, values, calls, classes and the flow between them."""

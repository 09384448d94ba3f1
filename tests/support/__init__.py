"""What tests and benches lean on: real servers and processes, no tests of the product."""

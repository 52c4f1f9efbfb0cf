"""What is started: arguments, environment, address and devices."""

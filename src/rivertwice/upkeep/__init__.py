"""What is damaged or must go: repair of tables and of windows, erasure."""

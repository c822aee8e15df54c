"""What a new machine needs before any command runs: Java, jars, data. The lowest package, except `config`."""

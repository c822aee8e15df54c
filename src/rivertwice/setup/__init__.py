"""What a bare machine needs before anything runs: Java, jars, data. The lowest room but `config`."""

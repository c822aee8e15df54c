"""Projects and homes on disk: the files and tables that a pipeline's runs leave, written without a stream."""

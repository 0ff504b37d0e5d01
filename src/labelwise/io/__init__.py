"""Files and folders: atomic writes, model folders, tensor files."""

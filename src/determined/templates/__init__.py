"""Starting projects, which `det init` copies into a folder: files to read and change, not modules to import."""

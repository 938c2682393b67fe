"""Programs that use the library: for now, the speed benchmark."""

"""The default backends. They come in by the same door as everybody's plugins: entry points of the group `skillery`."""

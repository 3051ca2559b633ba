"""Views: foreign contents in the form of pages. The code of this package runs in the rendering process."""

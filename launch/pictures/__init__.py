"""Pictures: SVG files of what people would rather look at than read, a file of this folder each."""

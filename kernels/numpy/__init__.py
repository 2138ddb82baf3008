"""Fast CPU forms, found by their names; they take strided operands without copying them. It knows no definition."""

"""Fast CPU forms, found by their names; a dense or sliced operand costs no allocation. It knows no definition."""

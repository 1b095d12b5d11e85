"""The run page: one self-contained HTML file that shows what a run did."""

"""asyncli: a long-connection soak tester that says what one more connection costs, with an error bar."""

__version__ = "0.1.0"

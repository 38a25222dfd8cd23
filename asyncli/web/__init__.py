"""What every HTTP server of asyncli guards itself with, whether it serves samples to a soak or a
page to a browser.
"""

"""The page in a real browser, over the real web surface, a real server and real locks."""

"""Read through a server: the HTTP client and the dialects of servers."""

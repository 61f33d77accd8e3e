"""The HTTP server: a reader for other processes, whose concurrent requests are packed into common passes."""

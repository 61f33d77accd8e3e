"""Work on retrieved passages with any reader: rerank, arrange, find conflicts."""

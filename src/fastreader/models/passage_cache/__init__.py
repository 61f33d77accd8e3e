"""Keys and values of prompts' headers and first passages, kept between calls."""

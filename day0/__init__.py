"""day0: takes a new LLM architecture from "never seen" to runs, runs correctly, runs fast, served, protected."""

__version__ = "0.1.0"

"""What the loop is not: files, tokenizer, corpus, instruments."""

"""A decoder alone in the forms that Hugging Face's transformers and tokenizers read, without code of ours."""

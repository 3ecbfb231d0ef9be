"""Between organisations: the codec, messages, frames and streams, certificates, bundles and policies."""

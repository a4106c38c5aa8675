"""The ``pagewire`` command line (extra ``cli``)."""

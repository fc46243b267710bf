"""Every file that crosses from one stage to the next: one module per format.

Each module holds a format's record types, its reader and its writer, and the version it writes.
Writers are whole or not at all and give the same bytes for the same input; readers never unpickle.
"""

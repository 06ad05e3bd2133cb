"""A folder of TaskD's package, as scripts import it."""

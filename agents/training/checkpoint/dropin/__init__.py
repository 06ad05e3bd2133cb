"""The functions of ``mindio_acp`` over Belay's saver."""

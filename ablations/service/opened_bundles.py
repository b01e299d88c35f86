"""The bundles that this process has read: an error that nothing explains may come from their content."""

opened_bundles: list[str] = []

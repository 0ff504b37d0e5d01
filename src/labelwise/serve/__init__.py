"""The HTTP service: models behind a JSON API, Annif's API and a page. Needs the extra `serve`."""

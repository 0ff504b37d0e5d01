"""The log of the service: one JSON object per line, or plain lines for a terminal."""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

from labelwise.formatting import json_text, printable

log = logging.getLogger("labelwise.serve")


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, and the fields that the caller has added as `extra={"fields": ...}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json_text(line)


class TextFormatter(logging.Formatter):
    """Time, message and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, or several with a traceback."""
        fields = " ".join(f"{key}={value}" for key, value in getattr(record, "fields", {}).items())
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        text = f"{time} {level}{record.getMessage()} {fields}".rstrip()
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return printable(text)


def set_up_logs(log_format: str) -> None:
    """Write all logs of this process to standard error, in the format `json` or `text`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = [], True
    logging.getLogger("uvicorn.access").disabled = True  # the gate writes a line per request
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def event(message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log a message with fields."""
    log.log(level, message, extra={"fields": fields})

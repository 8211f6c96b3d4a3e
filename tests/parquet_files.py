"""Parquet files, plain and as the Hugging Face hub has them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq


def write(path: Path, columns: dict[str, Any], **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **settings)
    return path


def hub_file(path: Path, columns: dict[str, Any], features: dict[str, Any]) -> Path:
    """As `datasets` writes a file: what the columns are is a note in the schema."""
    note = json.dumps({"info": {"features": features}})
    table = pa.table(columns).replace_schema_metadata({"huggingface": note})
    pq.write_table(table, path)
    return path

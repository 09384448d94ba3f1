"""What the Prefect server and the programs that speak to it are told: to keep to their folder, and to themselves."""

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_LOGGING_SERVER_LEVEL": "ERROR",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
}


def settings(folder: str) -> dict[str, str]:
    """As environment variables; everything Prefect writes is in that folder."""
    return {**QUIET, "PREFECT_HOME": folder}

"""Why a server did not start: lines of its log become causes and advice."""

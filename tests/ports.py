"""Ports for processes that tests start, which run beside each other."""

import socket


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return str(free.getsockname()[1])

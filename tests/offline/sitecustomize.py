"""No network: with this folder on PYTHONPATH, in this process and all that it starts, only this machine is reached.

Whoever tries is refused, and named in the file that SWIVEL_NETWORK_LOG names. Reverse look-ups and connections of
sockets that send nothing count as well: being asked is what matters, not what travels.
"""

import os
import sys

HOST_FIRST = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}
ADDRESS_SECOND = {"socket.connect", "socket.sendto", "socket.sendmsg"}
HERE = {None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0", b"localhost"}


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in HOST_FIRST:
        host = arguments[0]
    elif event in ADDRESS_SECOND and isinstance(arguments[1], tuple):  # else the path of a Unix socket
        host = arguments[1][0]
    else:
        return
    if host not in HERE:
        with open(os.environ["SWIVEL_NETWORK_LOG"], "a", encoding="utf-8") as log:  # noqa: PTH123 (loaded in every process)
            print(event, host, *sys.argv[:2], file=log)
        raise OSError(f"{event} {host}: no network in this test")


sys.addaudithook(refuse)

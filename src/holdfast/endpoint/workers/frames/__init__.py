"""What the nodes of a cluster pass on to each other: messages in frames, many on one connection with one proof for
many, and large messages in HTTP on sealed connections of their own.

This room owns the packets and both ends of such a connection. It may know no message and no owner: ``worker_client``
says where a request goes, and ``node_listener`` who answers. Open ``packets`` first.
"""

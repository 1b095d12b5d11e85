"""Hosts that train and are measured together: shards on devices, in this process or in workers."""

"""What several gateways share, in Redis or Valkey (DESIGN 12). This room is imported only if `store` is configured.

shared_tasks          the sessions of replicas: what each tells the others, and hears from them
shared_owners         ... and whose each task is
redis_schema          the store, as a replica has it; the names of keys, and the words of entries
redis_connection      the connection, the state of the store, and the loop that writes and reads it, batch by batch
redis_command_queue   what waits to be written and to be read
"""

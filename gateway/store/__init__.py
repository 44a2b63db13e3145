"""What several gateways share, in Redis or Valkey (DESIGN 12). This room is imported only if `store` is configured.

It knows `config` and `identity`, and of `tasks` only `ports`, which says what a store does.

redis_store   the states of the store, and the loop that carries what waits
link          one connection, by redis-py
names         the names of keys, and how long they are kept
waiting       what waits to be written and to be read
"""

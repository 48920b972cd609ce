-- Replaces a whole document, unless the stored one is newer or unreadable. A
-- floor of the same version gives way: this is the load that it asks for.
-- KEYS[1] document; ARGV: version, then pairs of field and value.
local key = KEYS[1]
local at = redis.call('HMGET', key, '.version', '.unreadable', '.floor')
local version, new = tonumber(at[1] or '0'), tonumber(ARGV[1])
if at[2] or version > new or (version == new and not at[3]) then
  return 1
end
redis.call('DEL', key)
redis.call('HSET', key, '.version', ARGV[1])
-- unpack() has a limit of some thousand values.
for i = 2, #ARGV, 1000 do
  redis.call('HSET', key, unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
return 0

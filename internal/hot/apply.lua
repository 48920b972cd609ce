-- Writes the fields that one event changed, if the document shows the event's
-- predecessor.
-- KEYS[1] document; ARGV: from, to, number of fields to delete, those fields,
-- then pairs of field and value.
-- Returns 0 written, 1 the document is as new or newer, 2 events are missing.
local key = KEYS[1]
local from, to = tonumber(ARGV[1]), tonumber(ARGV[2])
local at = redis.call('HMGET', key, '.version', '.unreadable', '.floor')
local version = tonumber(at[1] or '0')
if at[2] or version >= to then
  return 1
end
if version ~= from or at[3] then
  -- The floor stays behind, so that an even older write can't come back.
  redis.call('DEL', key)
  redis.call('HSET', key, '.version', ARGV[2], '.floor', '1')
  return 2
end
local deletes = tonumber(ARGV[3])
for i = 4, 3 + deletes do
  redis.call('HDEL', key, ARGV[i])
end
local set = { '.version', ARGV[2] }
for i = 4 + deletes, #ARGV do
  set[#set + 1] = ARGV[i]
end
redis.call('HSET', key, unpack(set))
return 0

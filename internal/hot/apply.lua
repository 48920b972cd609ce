-- Writes the fields that one event changed, if the document shows the event's
-- predecessor.
-- KEYS[1] document; ARGV: from, to, number of fields to delete, those fields,
-- then pairs of field and value.
-- Returns 0 written, 1 the document is as new or newer, 2 events are missing,
-- also while a document that was dropped at this very version is not back yet.
local key = KEYS[1]
local from, to = tonumber(ARGV[1]), tonumber(ARGV[2])
local at = redis.call('HMGET', key, '.version', '.unreadable', '.floor')
local version = tonumber(at[1] or '0')
if at[2] or version > to or (version == to and not at[3]) then
  return 1
end
if version ~= from or at[3] then
  -- The floor stays behind, so that an even older write can't come back.
  redis.call('DEL', key)
  redis.call('HSET', key, '.version', ARGV[2], '.floor', '1')
  return 2
end
-- unpack() has a limit of some thousand values.
local sets = 4 + tonumber(ARGV[3])
for i = 4, sets - 1, 1000 do
  redis.call('HDEL', key, unpack(ARGV, i, math.min(i + 999, sets - 1)))
end
redis.call('HSET', key, '.version', ARGV[2])
for i = sets, #ARGV, 1000 do
  redis.call('HSET', key, unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
return 0

-- Adds text to a draft, once.
-- KEYS[1] hash of the drafts of one aggregate, id to author; KEYS[2] the draft.
-- ARGV: id, author, offset, text, most drafts, most bytes, milliseconds it is kept,
-- and what all draft keys of the aggregate begin with.
-- Gives {0, length}, or what is wrong: 1 the offset is not the length, 2 too many
-- drafts, 3 too long, 4 somebody else's.
local index, draft = KEYS[1], KEYS[2]
local id, author, offset, text = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local length = redis.call('STRLEN', draft)
local owner = redis.call('HGET', index, id)
if length > 0 and owner and owner ~= author then
  return { 4, length }
end
if offset > length then
  return { 1, length }
end
if offset + #text <= length then
  return { 0, length }
end
if offset + #text > tonumber(ARGV[6]) then
  return { 3, length }
end
if length == 0 and redis.call('HLEN', index) >= tonumber(ARGV[5]) then
  -- Those that ran out leave their names behind.
  for _, name in ipairs(redis.call('HKEYS', index)) do
    if redis.call('EXISTS', ARGV[8] .. name) == 0 then
      redis.call('HDEL', index, name)
    end
  end
  if redis.call('HLEN', index) >= tonumber(ARGV[5]) then
    return { 2, length }
  end
end
length = redis.call('APPEND', draft, string.sub(text, length - offset + 1))
redis.call('HSET', index, id, author)
redis.call('PEXPIRE', draft, ARGV[7])
redis.call('PEXPIRE', index, ARGV[7])
return { 0, length }

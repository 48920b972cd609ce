-- Adds text to a draft, once.
-- KEYS[1] hash of the drafts of one aggregate, id to author; KEYS[2] the draft;
-- KEYS[3] the document of the aggregate.
-- ARGV: id, author, offset, text, most drafts, most bytes, milliseconds it is kept,
-- what all draft keys of the aggregate begin with, and the version of the aggregate
-- that allows the addition.
-- Gives {0, length}, or what is wrong: 1 the offset is not the length, 2 too many
-- drafts, 3 too long, 4 somebody else's, 5 the aggregate has a newer version.
local index, draft, document = KEYS[1], KEYS[2], KEYS[3]
local id, author, offset, text = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
for _, shown in ipairs(redis.call('HMGET', document, '.version', '.floor')) do
  if shown and tonumber(shown) > tonumber(ARGV[9]) then
    return { 5, 0 }
  end
end
local length = redis.call('STRLEN', draft)
local owner = redis.call('HGET', index, id)
if length > 0 and owner and owner ~= author then
  return { 4, length }
end
if offset > length then
  return { 1, length }
end
if offset + #text > tonumber(ARGV[6]) then
  return { 3, length }
end
if offset < length then
  local there = redis.call('GETRANGE', draft, offset, offset + #text - 1)
  if there == text then
    return { 0, length }
  end
  if there ~= string.sub(text, 1, #there) then
    if offset > 0 then
      return { 1, length }
    end
    redis.call('DEL', draft)
    length = 0
  end
end
if not owner and redis.call('HLEN', index) >= tonumber(ARGV[5]) then
  -- Those that ended leave their names behind.
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

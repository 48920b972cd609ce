-- Replaces the row of one aggregate in the indexes of one partition, unless the
-- stored row is of a newer version.
-- KEYS[1] hash of rows, each "version set set …".
-- ARGV: member, version, key prefix of the partition, then pairs of set, score.
local member, version, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local kept = {}
local row = redis.call('HGET', KEYS[1], member)
local new = { ARGV[2] }
for i = 4, #ARGV, 2 do
  kept[ARGV[i]] = true
  new[#new + 1] = ARGV[i]
end
if row then
  local first = true
  for word in string.gmatch(row, '%S+') do
    if first then
      if tonumber(word) > version then
        return 1
      end
      first = false
    elseif not kept[word] then
      redis.call('ZREM', prefix .. word, member)
    end
  end
end
-- The sets share the hash tag of KEYS[1].
for i = 4, #ARGV, 2 do
  redis.call('ZADD', prefix .. ARGV[i], ARGV[i + 1], member)
end
redis.call('HSET', KEYS[1], member, table.concat(new, ' '))
return 0

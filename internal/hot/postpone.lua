-- Moves a deadline, if nobody set it anew since it was taken.
-- KEYS[1] sorted set; ARGV: member, the deadline that taking it set, the new one.
local at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if at and tonumber(at) == tonumber(ARGV[2]) then
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
  return 1
end
return 0

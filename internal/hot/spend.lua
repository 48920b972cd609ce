-- Counts a member in sliding windows, or in none of them if one is full.
-- KEYS: sorted sets of members by time. ARGV: member, now, the time before which
-- no window looks, then limit and period of each key. Times in milliseconds.
-- Gives 0, or after how many milliseconds there is room.
local member, now = ARGV[1], tonumber(ARGV[2])
local wait = 0
for i, key in ipairs(KEYS) do
  local limit, period = tonumber(ARGV[2 + 2 * i]), tonumber(ARGV[3 + 2 * i])
  redis.call('ZREMRANGEBYSCORE', key, '-inf', ARGV[3])
  if not redis.call('ZSCORE', key, member) then
    local since = '(' .. string.format('%.0f', now - period)
    local count = redis.call('ZCOUNT', key, since, '+inf')
    if count >= limit then
      -- There is room once all but limit - 1 of them have left the window.
      local last = redis.call('ZRANGEBYSCORE', key, since, '+inf', 'WITHSCORES', 'LIMIT', count - limit, 1)
      wait = math.max(wait, tonumber(last[2]) + period - now, 1)
    end
  end
end
if wait > 0 then
  return wait
end
for _, key in ipairs(KEYS) do
  redis.call('ZADD', key, 'NX', ARGV[2], member)
  -- What nobody spends from for as long as the longest window is gone by itself.
  redis.call('PEXPIRE', key, now - tonumber(ARGV[3]))
end
return 0

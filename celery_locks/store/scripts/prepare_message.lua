-- prepare_message: announce a message that is about to be sent, and read the queued one that it may be merged
-- with. Until it is committed (commit_message.lua), the message does not run. May be repeated.
-- KEYS held is h:<name>, arguments a:<name>, prepared e:<job> of the message
-- ARGV 1 ms that it waits for the commit once it is delivered  2 ms for which the mark is kept
-- returns {now}, or {now, arguments or '' if they are not known, token, expiry, record} of the holder

--keys records held arguments prepared
--include clock

redis.call('SET', prepared, string.format('!%.0f', now() + ARGV[1]), 'PX', ARGV[2])
local holder, expiry = unpack(redis.call('ZRANGEBYSCORE', held, '(' .. now(), '(+inf', 'WITHSCORES', 'LIMIT', 0, 1))
if not holder then return {now()} end
local token, text = (redis.call('GET', arguments) or ''):match('^(%S+) (.*)$')
return {now(), token == holder and text or '', holder, expiry, redis.call('HGET', records, holder) or ''}

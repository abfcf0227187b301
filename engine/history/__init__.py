"""History in Cassandra: where finished runs end up, for those who outgrow MySQL for it.

    keeper     raises a shard's floor to the end of a day, once that is `live_days` old: nothing is put below it then
       |
    recorder   waits until nothing open is left below the floor, and writes all that has ended there to Cassandra,
       |       partition by partition in the order of the key; how far it came stands in MySQL (`recorded`)
       |
    keeper     drops the day, once every partition has come to its end

Cassandra first, then the drop. What stands below the floor never changes again: a retry, a catch-up, an edit and a run
by hand all stay above it, and a run that is open there holds up its day. So every run is written as it ended, and who
writes it twice (a killed recorder, a second host) writes the same row.

One table, `runs`: a partition for each job and month, newest first, a row for each run with its failed attempts in it.
Compaction is by windows of a day and a row lives as long as the table says, so that old files go whole: nothing is
deleted. A row's write time is when the run ended, in microseconds, with the attempt's number in the last three digits:
the later attempt of a run wins, whoever writes it and whenever.

The driver has threads of its own and blocks now and then: it is loaded by the recorder, a process of its own, and by
the API, where a thread of its own does its input and output and hands rows to the event loop; never by an executor, and
not at all where history is MySQL's. (A process between API and Cassandra would copy every row once more, and be one
more thing that can be away; a page of a job's runs is one query.) It talks protocol 4 through libev: version 5 checks
sums in pure Python, and the driver's asyncio loop corrupts frames.
"""
